// A text model for Python: what model.cc loads and request.cc asks.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <nanobind/nanobind.h>

#include "gil.h"
#include "vivace/engine/model.h"
#include "vivace/serve/engine_loop.h"

namespace vivace::python {

namespace nb = nanobind;

/// A model and the loop that serves it. Requests that draft with it keep it.
struct ServedModel {
  ServedModel(std::unique_ptr<engine::Model> o, engine::TextModel& m, const serve::EngineOptions& options)
      : account(options.account), owner(std::move(o)), model(m), loop(m, options) {}
  std::shared_ptr<engine::StepAccount> account;  // outlives the model, whose stream passes its gate
  std::unique_ptr<engine::Model> owner;
  engine::TextModel& model;
  serve::EngineLoop loop;  // ends before the model
  std::mutex moving;       // of who puts it to sleep or wakes it
  std::optional<serve::EngineLoop::Lease> asleep;  // as long as its memory is on the host; with `moving`
};

struct TextModel {
  explicit TextModel(std::shared_ptr<ServedModel> s)
      : served(std::move(s)), started(static_cast<size_t>(served->model.limits().max_batch)) {}
  ~TextModel() { let_go(&served); }
  engine::TextModel& model() const { return served->model; }
  std::shared_ptr<ServedModel> served;
  std::vector<int64_t> started;  // a slot: EngineLoop::submitted() when its direct sequence began
};

/// (tokens found, tokens kept, why not more was found or "")
nb::tuple cache_of(const serve::Job::Cache& c);

}  // namespace vivace::python
