// scenarios.h - what worker.cc can be told to do, one function each. An int is the exit code of the process.
//
// Threads: the main one.
#ifndef BYTEPS_TESTS_E2E_SCENARIOS_H_
#define BYTEPS_TESTS_E2E_SCENARIOS_H_

#include <cstdint>

namespace byteps::e2e {

// Which tensors Allocations reduces.
enum class Allocated { kSmall, kLarge, kLargeInBuffers };

// All data types, operations and sizes, bit for bit.
void Sums();

// Tensors in buffers, beside others, in place and not, whole and in parts; `kinds`: of memory, as memory_scenarios.cc
// numbers them, the same for all ranks, or by rank and round. `brief`: none is very large.
void Buffers(int kinds, bool brief);

// In the middle of its work one rank forbids all others to look into its memory.
void Guarded(int guarded_rank);

// Once it has settled, a tensor that is reduced again and again costs no page and no memory of its size.
void Steady(int rounds);

// A tensor of so many megabytes, from memory that was written to memory that was not, some rounds.
void Large(int megabytes);

// Many small tensors, which the library finds all at once: said before and after, so that its messages can be counted.
void Many(int tensors);

// The same few tensors over and over, one by one and together. When all have been through a few rounds, they cost no
// allocation in any process of the job, so no registration with libfabric, and no page: small ones, large ones in the
// user's memory, and large ones in the library's own buffers. Needs programs that count (BUILD).
void Allocations(Allocated kind, int rounds);

// Many tensors in flight, submitted in another order on each rank, many times.
void Orders(int rounds);

void Broadcasts();

// Sums, in a process that may have so many open files.
void FewFiles(int files);

// Open, work, shut down, many times in one process. What leaks grows in both halves; what the allocator keeps for the
// next time grows once.
void Lives(int count);

// The second life of this process is in another job, at this port, with other servers: nothing is kept of those before.
void OtherServers(int port);

// Rounds in which bytes are altered on their way: each gives the right sum or DATA_LOSS, and the job goes on.
void Altered();

// Works until something goes wrong, then says what, and shows that everything after it fails at once.
int Loop(int64_t elements, bool in_buffer);

// Tensors of all sizes, some at a time, each rank in another order, now and then a new one or a barrier, until an
// error. Every operation that is under way then must end, and what it says is told: "error CODE: MESSAGE", a line each.
int Storm(uint64_t seed);

// Ranks that disagree: an error on every rank, and the session goes on.
void Mismatches();

// Deadlines, cancels, duplicates.
void Patience();

// An open session that does nothing, until SIGUSR1: Job::ExpectIdle watches what it uses meanwhile.
void Idle();

// The time of a small round.
void Latency(int rounds);

// How fast large tensors are, and at what price.
void Bandwidth();

// A child that uses the session gets an error; one that does not, disturbs nothing.
void Fork();

// Two sessions of different names side by side in each process.
void Sessions();

// Opens, and tells the error.
int OpenFails();

// Nothing ever happens, because the scheduler "hoards" keeps it to itself.
void Hoarded();

// Rank 1 stands still before it takes part, until it is told to go on.
void Stall();

// The scheduler "stuck" does not come back: callers do, and hear of it.
void Stuck(int64_t elements);

// Works beside `loop` for a while, then ends without a word.
void Vanish();

}  // namespace byteps::e2e

#endif  // BYTEPS_TESTS_E2E_SCENARIOS_H_
