/* standin_nccl.c - a libnccl.so.2 that knows its version. */
int ncclGetVersion(int* version);
__attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
