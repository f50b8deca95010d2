// What tokenizers ask about characters: class, composition, UTF-8.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace vivace::engine::text {

bool is_letter(char32_t c);           // \p{L}
bool is_number(char32_t c);           // \p{N}
bool is_digit_or_number(char32_t c);  // what the pre-tokenizer Digits calls numeric: a newer Unicode than \p{N}
bool is_space(char32_t c);            // \s
/// Whether NFC may change a text that holds it.
bool may_compose(char32_t c);

/// The first character of `s` and how many bytes it takes; 0: s is empty or does not begin with one.
int read_utf8(std::string_view s, char32_t* c);
void append_utf8(char32_t c, std::string* out);

}  // namespace vivace::engine::text
