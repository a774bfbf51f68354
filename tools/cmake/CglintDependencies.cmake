# Debian/Ubuntu packages only; static where there is an archive.
#   fmt (header-only), CLI11, nlohmann_json, toml++ (header-only); zlib, zstd, sqlite3, xxhash (static archives);
#   simdjson has no archive in Debian: its shared library is copied beside the programs and found by $ORIGIN.
find_package(Threads REQUIRED)

find_package(fmt REQUIRED)
add_library(cglint_fmt INTERFACE)
target_link_libraries(cglint_fmt INTERFACE fmt::fmt-header-only)

find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 REQUIRED)

function(cglint_find_static name header archive)
  find_path(${name}_INCLUDE ${header} REQUIRED)
  find_library(${name}_ARCHIVE ${archive} REQUIRED)
  add_library(${name} INTERFACE)
  target_include_directories(${name} SYSTEM INTERFACE ${${name}_INCLUDE})
  target_link_libraries(${name} INTERFACE ${${name}_ARCHIVE})
endfunction()
cglint_find_static(cglint_zlib zlib.h libz.a)
cglint_find_static(cglint_zstd zstd.h libzstd.a)
cglint_find_static(cglint_sqlite sqlite3.h libsqlite3.a)
target_link_libraries(cglint_sqlite INTERFACE Threads::Threads ${CMAKE_DL_LIBS} m)
cglint_find_static(cglint_xxhash xxhash.h libxxhash.a)
find_path(CGLINT_TOML_INCLUDE toml++/toml.h REQUIRED)
add_library(cglint_toml INTERFACE)
target_include_directories(cglint_toml SYSTEM INTERFACE ${CGLINT_TOML_INCLUDE})

find_path(CGLINT_SIMDJSON_INCLUDE simdjson.h REQUIRED)
find_library(CGLINT_SIMDJSON_LIBRARY simdjson REQUIRED)
add_library(cglint_simdjson INTERFACE)
target_include_directories(cglint_simdjson SYSTEM INTERFACE ${CGLINT_SIMDJSON_INCLUDE})
target_link_libraries(cglint_simdjson INTERFACE ${CGLINT_SIMDJSON_LIBRARY})
if(CGLINT_SELF_CONTAINED AND CGLINT_SIMDJSON_LIBRARY MATCHES "\\.so")
  # Copy the library under its SONAME, which is what the loader asks for.
  file(REAL_PATH ${CGLINT_SIMDJSON_LIBRARY} simdjson_file)
  execute_process(COMMAND ${CMAKE_OBJDUMP} -p ${simdjson_file} OUTPUT_VARIABLE simdjson_headers ERROR_QUIET)
  if(simdjson_headers MATCHES "SONAME +([^ \n]+)")
    configure_file(${simdjson_file} ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${CMAKE_MATCH_1} COPYONLY)
    set(CGLINT_SIMDJSON_SONAME ${CMAKE_MATCH_1} CACHE INTERNAL "")
  endif()
endif()

if(CGLINT_TESTS)
  find_package(GTest REQUIRED)
endif()
if(CGLINT_BENCH)
  find_package(benchmark REQUIRED)
endif()
