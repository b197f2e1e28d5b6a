/* control.h - what a test may ask of the fake GPUs of its process, beyond the contract: bps_fake_gpu().
 *
 *     const fake_gpu_control* gpu = bps_fake_gpu();              // linked, or by dlsym from libbyteps_device_fake.so
 *     gpu->table->open(&args, &device, NULL);                    // the program's own view of a device
 *     gpu->counts(&counts);
 *
 * Threads: any. */
#ifndef BYTEPS_DEVICE_PLUGINS_FAKE_CONTROL_H_
#define BYTEPS_DEVICE_PLUGINS_FAKE_CONTROL_H_

#include "abi/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Since the beginning, of all devices. */
typedef struct fake_gpu_counts {
  uint64_t synchronisations; /* calls that block until a device has done something */
  uint64_t allocations;      /* of device memory */
  uint64_t host_allocations; /* of pinned memory */
  uint64_t registrations;    /* of host memory */
  uint64_t streams;          /* made */
  uint64_t events;           /* made */
  uint64_t copies_to_host;
  uint64_t copies_to_device;
  uint64_t copies_within;
  uint64_t bytes_to_host;
  uint64_t bytes_to_device;
  uint64_t remote_reads; /* by network cards, from device memory */
  uint64_t flushes;      /* of what network cards have written */
  uint64_t races;        /* accesses that nothing orders, and accesses to memory that was given back */
  uint64_t conversions;  /* from or to the host: copies, too */
} fake_gpu_counts;

/* What a kernel reads, or reads and writes, of the memory of its device. */
typedef struct fake_gpu_access {
  const void* address;
  uint64_t size;
  int32_t write; /* 1: it writes, too */
  int32_t reserved;
} fake_gpu_access;

typedef struct fake_gpu_control {
  const bps_device_table* table;
  /* Begins anew with these options (device_plugins/fake/options.h). No device may be open. 0: the text is wrong. */
  int32_t (*reset)(const char* options);
  void (*counts)(fake_gpu_counts* counts);
  /* The text of report `index` of `counts.races`; cut at `size`. 0: there is none. */
  int32_t (*race)(uint64_t index, char* text, size_t size);
  /* The program touches pinned memory by itself: the detector cannot see it. */
  void (*host_access)(const void* address, uint64_t size, int32_t write);
  /* What device memory holds now, whatever is under way. 0: no such memory. */
  int32_t (*peek)(const void* address, void* to, uint64_t size);
  /* The call of this verb ("allocate_host") behind `after` others ends with `code`. */
  void (*fail)(const char* verb, uint64_t after, int32_t code);
  /* The context of a device is lost, as by an illegal address. */
  void (*lose)(int32_t device);
  void (*capture)(bps_device_stream stream, int32_t on);
  /* Puts a kernel into a stream of `device` (NULL: its default one). When its turn comes `run` is called, once, on
   * whichever thread: `inside` has an address for each of the `count` accesses where the bytes can be touched now; it
   * is NULL when some are of memory that was given back (a race, reported). `run` must not call the fake. BPS_OK, or a
   * code: then `run` is never called. */
  int32_t (*launch)(int32_t device, bps_device_stream stream, void (*run)(void* user, void* const* inside), void* user,
                    const fake_gpu_access* accesses, size_t count);
  /* A simulated network card reaches device memory: where these bytes can be touched, or NULL, if they are not a
   * GPU's. With `read` that is now; else it may write there later, at any time. */
  void* (*remote_access)(const void* address, uint64_t size, int32_t read);
  /* What is put into a stream of `device` (NULL: its default one) from now on waits until *go is not 0. BPS_OK, or a
   * code. */
  int32_t (*hold)(int32_t device, bps_device_stream stream, const int32_t* go);
  /* The call of this verb ("event_query") behind `after` others never returns, as one of a driver that is stuck. How
   * many calls hang by now; a verb of NULL only asks. */
  uint64_t (*hang)(const char* verb, uint64_t after);
} fake_gpu_control;

BPS_PLUGIN_EXPORT const fake_gpu_control* bps_fake_gpu(void);

#ifdef __cplusplus
}
#endif

#endif /* BYTEPS_DEVICE_PLUGINS_FAKE_CONTROL_H_ */
