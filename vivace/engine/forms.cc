#include "vivace/engine/forms.h"

#include <algorithm>

namespace vivace::engine {

void Forms::add(const std::string& part, const std::string& product, const Tensor& w) {
  if (!w.present()) return;
  auto form =
      std::find_if(forms_.begin(), forms_.end(), [&](const Form& f) { return f.part == part && f.product == product; });
  if (form == forms_.end()) form = forms_.insert(form, Form{part, product, {}});
  if (std::find(form->dtypes.begin(), form->dtypes.end(), w.dtype) == form->dtypes.end())
    form->dtypes.push_back(w.dtype);
}

std::string Forms::json() const {
  const auto dtypes = [](const Form& f) {
    std::string all;
    for (const DType t : f.dtypes) all += std::string(all.empty() ? "" : ", ") + name(t);
    return '"' + all + '"';
  };
  std::string out;
  for (size_t i = 0; i < forms_.size(); ++i) {
    const Form& f = forms_[i];
    const bool first = i == 0 || forms_[i - 1].part != f.part,
               last = i + 1 == forms_.size() || forms_[i + 1].part != f.part;
    if (first) out += (i == 0 ? "\"" : ", \"") + f.part + "\": ";
    if (f.product.empty()) {
      out += dtypes(f);
      continue;
    }
    out += (first ? "{\"" : ", \"") + f.product + "\": " + dtypes(f);
    if (last) out += "}";
  }
  return "{" + out + "}";
}

}  // namespace vivace::engine
