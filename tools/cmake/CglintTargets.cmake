# Warnings, sanitizers and helpers, on one private interface target; no global flags.
add_library(cglint_flags INTERFACE)
target_compile_options(cglint_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wconversion -Wno-sign-conversion>)
if(CGLINT_WERROR)
  target_compile_options(cglint_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(CGLINT_SANITIZE)
  target_compile_options(cglint_flags INTERFACE -fsanitize=${CGLINT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(cglint_flags INTERFACE -fsanitize=${CGLINT_SANITIZE})
endif()
if(CGLINT_FUZZ)
  # The fuzzer is guided by the coverage of the libraries, not only of its own entry.
  target_compile_options(cglint_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# cglint_library(name SOURCES ... DEPS ... PRIVATE_DEPS ...): a static library whose headers are found from lib/.
function(cglint_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/lib)
  target_link_libraries(${name} PUBLIC ${arg_DEPS} PRIVATE ${arg_PRIVATE_DEPS} cglint_flags)
endfunction()

# A program in bin/, self-contained if asked: libstdc++ and libgcc static, shared leftovers found beside it.
function(cglint_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} cglint_flags)
  target_link_options(${name} PRIVATE $<$<CONFIG:Release>:-s>)  # the folder is copied around
  cglint_make_self_contained(${name})
endfunction()

function(cglint_make_self_contained name)
  if(CGLINT_SELF_CONTAINED AND NOT CGLINT_SANITIZE)
    # For glibc 2.34 and later. The unwinder is the system's, as in libcglint_record.so: a static one needs a symbol of 2.35. A part of
    # libstdc++ that nobody uses needs one of 2.36: it goes, unless the linker reads the shared libstdc++ that libsimdjson.so asks for.
    target_link_options(${name} PRIVATE -static-libstdc++ -shared-libgcc -Wl,--gc-sections -Wl,--allow-shlib-undefined)
  endif()
  set_target_properties(${name} PROPERTIES BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN" BUILD_RPATH_USE_ORIGIN ON)
endfunction()

# Programs and libraries that tests and tools/gpu_checks run lie in gpu_checks/ of the build folder, not among what users run (bin/). What
# they need from there is beside them in the folder that tools/gpu_checks/pack.py makes, and in bin/ here.
function(cglint_gpu_check_programs)
  set_target_properties(${ARGN} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/gpu_checks LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/gpu_checks
    BUILD_RPATH "$ORIGIN;$ORIGIN/../bin" BUILD_RPATH_USE_ORIGIN ON)
endfunction()

# Turns files into one C++ source that defines
#   std::string_view <function>(std::string_view name)   ("" for an unknown name)
#   std::vector<std::string_view> <function>_names()
# with the files' contents. NAMES are the keys, FILES the files, in the same order.
function(cglint_embed_files output namespace function)
  cmake_parse_arguments(arg "" "" "NAMES;FILES" ${ARGN})
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DNAMESPACE=${namespace} -DFUNCTION=${function}
            "-DNAMES=${arg_NAMES}" "-DFILES=${arg_FILES}" -P ${PROJECT_SOURCE_DIR}/tools/cmake/embed.cmake
    DEPENDS ${arg_FILES} ${PROJECT_SOURCE_DIR}/tools/cmake/embed.cmake VERBATIM)
endfunction()
