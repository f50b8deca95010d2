// Entry of Whisper.
#pragma once
#include "vivace/engine/speech.h"

namespace vivace::models::whisper {

/// Loads the hub folder at `path`; with random_weights it may hold config.json alone. Errors: NotFound, CorruptData,
/// Unsupported, InvalidArgument (options, fields of the configuration), InvalidShape, OutOfMemory.
Result<std::unique_ptr<engine::SpeechModel>> load_speech(const std::string& path, const engine::SpeechOptions& options);

}  // namespace vivace::models::whisper
