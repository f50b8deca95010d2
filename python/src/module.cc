// vivace._core: what the Python package is built on. Pure C++ below, one file a subject here.
#include <nanobind/nanobind.h>

#include "array.h"
#include "attention_variant.h"
#include "errors.h"
#include "gpu_runtime.h"
#include "jax_ffi.h"
#include "messages.h"
#include "model.h"
#include "ops.h"
#include "policy.h"
#include "profile.h"
#include "runtime.h"
#include "sched.h"
#include "tensor.h"
#include "user_jit.h"

NB_MODULE(_core, m) {
  m.doc() = "The C++ core of vivace; use the vivace package.";
  m.attr("__version__") = VV_VERSION;
  vivace::python::add_errors(m);
  vivace::python::add_view(m);
  vivace::python::add_runtime(m);
  vivace::python::add_table(m);
  vivace::python::add_ops(m);
  vivace::python::add_gpu_runtime(m);
  vivace::python::add_jax_ffi(m);
  vivace::python::add_array(m);
  vivace::python::add_user_jit(m);
  vivace::python::add_attention_variant(m);
  vivace::python::add_profile(m);
  vivace::python::add_sched(m);
  vivace::python::add_model(m);
  vivace::python::add_request(m);
  vivace::python::add_reply(m);
  vivace::python::add_outbox(m);
  vivace::python::add_bpe(m);
  vivace::python::add_policy(m);
  vivace::python::add_policy_host(m);
  vivace::python::add_robot(m);
  vivace::python::add_robot_client(m);
  vivace::python::add_messages(m);
  vivace::python::add_control(m);
  vivace::python::add_checkpoint(m);
  vivace::python::add_audio(m);
  vivace::python::add_speech(m);
}
