# The CUDA toolkit, looked up once for every part that needs it. None needs a GPU to build.
#   CGLINT_CUDA=AUTO  build them where the toolkit is found (default)
#   CGLINT_CUDA=ON    fail to configure where it is not
#   CGLINT_CUDA=OFF   skip
#   CGLINT_CUDA_TARGETS=DEV      sm_90a only (quick, small; line tables for profilers unless it is a release build). Default where no
#                                other GPU is found
#   CGLINT_CUDA_TARGETS=RELEASE  sm_80, sm_90a, PTX for later chips, and from toolkit 12.8 sm_100 and sm_120. Default where a GPU of
#                                another compute capability than 9.0 is found
#   CGLINT_CUDA_TARGETS=PTX      PTX of sm_80 only: runs the paths of older chips on whatever chip is there
include_guard(GLOBAL)

if(NOT DEFINED CGLINT_CUDA)
  set(CGLINT_CUDA AUTO CACHE STRING "Build the GPU programs: AUTO (where a toolkit is found), ON, OFF")
  set_property(CACHE CGLINT_CUDA PROPERTY STRINGS AUTO ON OFF)
endif()
# What this machine's own GPUs need, where nothing else is asked for.
if(NOT DEFINED CGLINT_CUDA_TARGETS)
  set(CGLINT_DEFAULT_CUDA_TARGETS DEV)
  find_program(CGLINT_NVIDIA_SMI nvidia-smi)
  if(CGLINT_NVIDIA_SMI)
    execute_process(COMMAND ${CGLINT_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE CGLINT_CHIPS ERROR_QUIET TIMEOUT 30)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]+" CGLINT_CHIPS "${CGLINT_CHIPS}")
    list(REMOVE_ITEM CGLINT_CHIPS "9.0")
    if(CGLINT_CHIPS)
      set(CGLINT_DEFAULT_CUDA_TARGETS RELEASE)
    endif()
  endif()
endif()
set(CGLINT_CUDA_TARGETS "${CGLINT_DEFAULT_CUDA_TARGETS}" CACHE STRING "Chips to compile kernels for: DEV, RELEASE or PTX")
set_property(CACHE CGLINT_CUDA_TARGETS PROPERTY STRINGS DEV RELEASE PTX)

# cglint_find_cuda(<result> <what>): the toolkit's targets (CUDA::...) in the calling folder. <result> is true where
# they are there; <what> is not built otherwise.
macro(cglint_find_cuda result what)
  set(${result} FALSE)
  if(NOT CGLINT_CUDA STREQUAL "OFF")
    # With a minimum of 3.25 CMake's module marks CUDA::nvToolsExt as deprecated without asking whether the toolkit still has it (13 may not).
    set(CGLINT_CMAKE_MINIMUM "${CMAKE_MINIMUM_REQUIRED_VERSION}")
    set(CMAKE_MINIMUM_REQUIRED_VERSION 3.22)
    find_package(CUDAToolkit 12.4 QUIET)
    set(CMAKE_MINIMUM_REQUIRED_VERSION "${CGLINT_CMAKE_MINIMUM}")
    if(CUDAToolkit_FOUND)
      set(${result} TRUE)
    elseif(CGLINT_CUDA STREQUAL "ON")
      message(FATAL_ERROR "CGLINT_CUDA=ON, but no CUDA toolkit 12.4 or later was found")
    else()
      message(STATUS "CUDA toolkit 12.4 or later not found: ${what} not built")
    endif()
  endif()
endmacro()

# cglint_find_cupti(<result> <what>): the folder of cupti.h in CGLINT_CUPTI_INCLUDE. After cglint_find_cuda.
macro(cglint_find_cupti result what)
  find_path(CGLINT_CUPTI_INCLUDE cupti.h
    HINTS ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_LIBRARY_ROOT}/extras/CUPTI/include ${CUDAToolkit_TARGET_DIR}/extras/CUPTI/include)
  set(${result} TRUE)
  if(NOT CGLINT_CUPTI_INCLUDE)
    set(${result} FALSE)
    message(STATUS "cupti.h not found: ${what} not built")
  endif()
endmacro()

# cglint_enable_cuda_language(): CUDA C++20 in the calling folder. After cglint_find_cuda.
macro(cglint_enable_cuda_language)
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")
  endif()
  # Targets are given as -gencode: CMAKE_CUDA_ARCHITECTURES has no spelling for "these plus PTX".
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  enable_language(CUDA)
  # CMake 3.25 knows no C++20 flag for nvcc, though every nvcc accepted here has one.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
endmacro()

# cglint_cuda_kernel_flags(<result>): compile options for kernels, by CGLINT_CUDA_TARGETS. Release builds and code for several chips are
# compressed; line tables, a third of a binary, are for development.
function(cglint_cuda_kernel_flags result)
  if(CGLINT_CUDA_TARGETS STREQUAL "RELEASE")
    set(flags "SHELL:-gencode arch=compute_80,code=sm_80" "SHELL:-gencode arch=compute_90a,code=sm_90a")
    if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
      list(APPEND flags "SHELL:-gencode arch=compute_100,code=sm_100"
           "SHELL:-gencode arch=compute_120,code=[sm_120,compute_120]")
    endif()
    # Of the PTX in a binary the driver takes the newest that the chip accepts.
    list(APPEND flags "SHELL:-gencode arch=compute_80,code=compute_80")
  elseif(CGLINT_CUDA_TARGETS STREQUAL "PTX")
    set(flags "SHELL:-gencode arch=compute_80,code=compute_80")
  else()
    set(flags "SHELL:-gencode arch=compute_90a,code=sm_90a")
  endif()
  list(APPEND flags -Xcompiler=-Wall,-Wextra)
  if(CGLINT_CUDA_TARGETS STREQUAL "DEV" AND NOT CMAKE_BUILD_TYPE MATCHES "^(Release|MinSizeRel)$")
    list(APPEND flags -lineinfo)
  else()
    list(APPEND flags -Xfatbin=-compress-all)
  endif()
  set(${result} ${flags} PARENT_SCOPE)
endfunction()
