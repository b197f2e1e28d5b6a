/* hello.c - the smallest program with the library: a worker alone. */
#include <byteps/byteps.h>
#include <stdio.h>

int main(void) {
  bps_open_args args = BPS_OPEN_ARGS_INIT;
  bps_session* session = NULL;
  bps_status* error = bps_open(&args, &session);
  if (error != NULL) {
    fprintf(stderr, "%s\n", bps_status_message(error));
    return 1;
  }
  printf("hello from BytePS %s\n", bps_version_string());
  bps_status_free(bps_shutdown(session, 1000));
  bps_status_free(bps_close(session));
  return 0;
}
