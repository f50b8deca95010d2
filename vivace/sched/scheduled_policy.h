// Models as a scheduler's tenants: how a loaded one is admitted, and a policy each of whose calls is one of the
// tenant's.
#pragma once
#include <memory>

#include "vivace/engine/policy.h"
#include "vivace/engine/speech.h"
#include "vivace/sched/scheduler.h"

namespace vivace::sched {

/// Admits a loaded model with its bytes and `times`, of which worst_us is `worst_us` where that is not 0. Errors:
/// Tenant::admit()'s.
Status admit(Tenant& tenant, const engine::Model& model, Times times, double worst_us = 0);
/// The same of a language model that was loaded with the tenant's gates(). Errors: InvalidArgument for a guaranteed
/// tenant, also.
Status admit_text(Tenant& tenant, const engine::TextModel& model, double worst_us = 0);
/// Of a guaranteed tenant: InvalidArgument. Before a language model is loaded with it.
Status check_text(const Tenant& tenant);
/// The same two of a speech model, whose tenant is also its account.
Status admit_speech(Tenant& tenant, const engine::SpeechModel& model, double worst_us = 0);
Status check_speech(const Tenant& tenant);

/// What a call of a policy takes at worst: calls with frames, words and a state of zeros, until enough of them or two
/// seconds are over, and 3 % on top. A call passes no gate. Setup phase. Errors: FailedPrecondition where a policy
/// cannot be asked so; say its times then.
Result<Times> time_calls(engine::PolicyModel& policy);

/// How a policy was loaded: PolicyOptions::partition and ::switches.
enum class Partition : uint8_t { none, kept, switched };
inline Partition partition_of(const engine::PolicyOptions& o) {
  return o.switches ? Partition::switched : o.partition != 0 ? Partition::kept : Partition::none;
}

/// Times a policy, if `worst_us` is 0, has gates within its calls where it is not guaranteed, admits it and makes it
/// make_scheduled()'s. One that switches is timed in its partition and on the whole device, and admitted by the longer.
/// Errors: theirs.
Result<std::unique_ptr<engine::PolicyModel>> admit_policy(std::unique_ptr<engine::PolicyModel> policy,
                                                          std::shared_ptr<Tenant> tenant, double worst_us = 0,
                                                          Partition partition = Partition::none);

/// `policy`, loaded with the tenant's urgent() and gates(), as one whose predict() and generate() wait for their turn
/// (guaranteed) or are charged to it (others). `switches`: each call asks first whether it has the whole device
/// (Tenant::take_whole()) and keeps to the answer until it ends. Errors of calls: those of Tenant::enter() besides the
/// policy's own.
std::unique_ptr<engine::PolicyModel> make_scheduled(std::unique_ptr<engine::PolicyModel> policy,
                                                    std::shared_ptr<Tenant> tenant, bool switches = false);

}  // namespace vivace::sched
