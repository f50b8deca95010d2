// What tokenizers ask about characters: class, composition, UTF-8.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace vivace::engine::text {

inline constexpr size_t kMostText = 64 << 20;   // bytes that are encoded at once
inline constexpr size_t kMostToken = 2048;      // bytes of a token

bool is_letter(char32_t c);           // \p{L}
bool is_number(char32_t c);           // \p{N}
bool is_digit_or_number(char32_t c);  // what the pre-tokenizer Digits calls numeric: a newer Unicode than \p{N}
bool is_space(char32_t c);            // \s
/// Whether NFC may change a text that holds it.
bool may_compose(char32_t c);

/// The first character of `s` and how many bytes it takes; 0: s is empty or does not begin with one.
int read_utf8(std::string_view s, char32_t* c);
/// Bytes at the front of `s`, where read_utf8 finds no character, that one U+FFFD stands for: the longest beginning of
/// a character, else one byte. So Unicode recommends it, and so Python and the tokenizers library have it.
int malformed_utf8(std::string_view s);
/// Whether `s` is the beginning of one character, to which only further bytes are missing.
bool is_cut_utf8(std::string_view s);
/// Bytes of `s` that are whole characters, or can never become one: those behind may still be completed.
size_t whole_utf8(std::string_view s);
void append_utf8(char32_t c, std::string* out);
/// Appends `s` as valid UTF-8: U+FFFD for what malformed_utf8() says.
void append_valid_utf8(std::string_view s, std::string* out);

}  // namespace vivace::engine::text
