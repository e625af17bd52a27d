// What programs use of the vendor's runtime: compiling a module, and running what came of it.
#ifndef DICP_STUB_TOPS_RUNTIME_H
#define DICP_STUB_TOPS_RUNTIME_H

#include <cstddef>
#include <cstdint>

namespace hlir {
struct Module;
}

struct topsgraphProgramRecord;
struct topsExecutableRecord;
typedef topsgraphProgramRecord* topsgraphProgram;
typedef topsExecutableRecord* topsExecutable_t;
typedef void* topsResource_t;
typedef void* topsStream_t;
typedef int topsError_t;
typedef int topsgraphResult;

topsgraphResult topsgraphCreateProgramFromModule(topsgraphProgram* program, hlir::Module* module);
topsgraphResult topsgraphCompileProgram(topsgraphProgram program, int count, const char** options);
topsgraphResult topsgraphGetBinSize(topsgraphProgram program, uint64_t* size);
topsgraphResult topsgraphGetBin(topsgraphProgram program, char* binary);
topsgraphResult topsgraphDestroyProgram(topsgraphProgram* program);
topsError_t topsSetDevice(int device);
topsError_t topsCreateExecutable(topsExecutable_t* executable, const char* binary, uint64_t size);
topsError_t topsDestroyExecutable(topsExecutable_t executable);
topsError_t topsLaunchExecutable(topsExecutable_t executable, topsResource_t resource, void** inputs,
                                 size_t input_count, int64_t* input_dims, size_t* input_rank, void** outputs,
                                 size_t output_count, int64_t* output_dims, size_t* output_rank,
                                 topsStream_t stream);

#endif  // DICP_STUB_TOPS_RUNTIME_H
