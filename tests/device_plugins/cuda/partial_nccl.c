/* partial_nccl.c - a libnccl.so.2 that knows its version, and lacks the functions of later ones. */
int ncclGetVersion(int* version);
__attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
