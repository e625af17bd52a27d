// The few names of the CUDA runtime that the published sources use. On the CPU a call has ended when it returns.
#pragma once
#define CUDART_VERSION 0
typedef struct CUstream_st* cudaStream_t;
typedef enum { cudaSuccess = 0 } cudaError_t;
static inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return (void)stream, cudaSuccess; }
static inline cudaError_t cudaGetLastError(void) { return cudaSuccess; }
static inline const char* cudaGetErrorString(cudaError_t error) { return (void)error, "none"; }
