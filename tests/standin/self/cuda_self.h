// Shared by the two files of CUDA's tests.
#pragma once

#ifdef STANDIN_CUDA_HEADER
#include STANDIN_CUDA_HEADER
#else
#include "../cuda/cuda.h"
#endif
#include "check.h"

CUcontext start();
void finish();
CUresult proc_address(const char *name, void **function, int version, CUdriverProcAddressQueryResult *status);
void test_virtual_memory();
void test_processes();
int play(const std::vector<std::string> &role);
