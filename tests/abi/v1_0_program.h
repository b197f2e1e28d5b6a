/* v1_0_program.h - what a program compiled against version 1.0 hands to the library, as bytes and functions. */
#ifndef BYTEPS_TESTS_ABI_V1_0_PROGRAM_H_
#define BYTEPS_TESTS_ABI_V1_0_PROGRAM_H_

#ifdef __cplusplus
extern "C" {
#endif

/* Structs of byteps.h 1.0 with every field set to something that can be recognised. */
const void* v1_0_open_args(void);
const void* v1_0_declare_args(void);
const void* v1_0_push_pull_args(void);
const void* v1_0_broadcast_args(void);
const void* v1_0_barrier_args(void);

/* Memory for a bps_info of 1.0, and what a 1.0 program reads in it. */
void* v1_0_info(void);
unsigned long long v1_0_info_generation(void);

/* The entry of a scheduler plugin (last come, first served) of scheduler.h 1.0; a bps_scheduler_plugin_fn. */
int v1_0_scheduler_entry(const void* host, const void** plugin);

#ifdef __cplusplus
}
#endif

#endif /* BYTEPS_TESTS_ABI_V1_0_PROGRAM_H_ */
