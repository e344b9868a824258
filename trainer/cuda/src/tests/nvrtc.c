// An NVRTC for tests: as the real one it opens its builtins by their bare name when it compiles. An old one
// does not know the device.

#include <dlfcn.h>
#include <string.h>

static const char binary[] = "\x7f" "ELF of the test";

int nvrtcCreateProgram(void **program, const char *source, const char *name, int headers, const char *const *texts,
                       const char *const *names) {
    (void)source, (void)name, (void)headers, (void)texts, (void)names;
    *program = (void *)binary;
    return 0;
}
int nvrtcCompileProgram(void *program, int count, const char *const *options) {
    (void)program, (void)count, (void)options;
#ifdef OLD
    return 5;
#endif
    return dlopen("libnvrtc-builtins.so.13.0", RTLD_NOW) ? 0 : 7;
}
int nvrtcDestroyProgram(void **program) { return *program = 0, 0; }
const char *nvrtcGetErrorString(int status) { return status ? "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE" : "NVRTC_SUCCESS"; }
int nvrtcGetProgramLogSize(void *program, unsigned long *bytes) { return (void)program, *bytes = 1, 0; }
int nvrtcGetProgramLog(void *program, char *log) { return (void)program, *log = 0, 0; }
int nvrtcGetCUBINSize(void *program, unsigned long *bytes) { return (void)program, *bytes = sizeof binary, 0; }
int nvrtcGetCUBIN(void *program, char *to) { return (void)program, memcpy(to, binary, sizeof binary), 0; }
int nvrtcGetPTXSize(void *program, unsigned long *bytes) { return nvrtcGetCUBINSize(program, bytes); }
int nvrtcGetPTX(void *program, char *to) { return nvrtcGetCUBIN(program, to); }
