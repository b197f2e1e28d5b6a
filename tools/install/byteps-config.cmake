# find_package(byteps) gives
#
#   byteps::byteps              the library and its headers: target_link_libraries(trainer byteps::byteps)
#   byteps::headers             the headers alone, for plugins
#   byteps_add_plugin(KIND NAME SOURCE ...)
#                               a plugin libbyteps_<KIND>_<NAME>.so, with what a plugin exports
#   BYTEPS_PLUGIN_DIR           where the library looks for plugins
#
# Everything is found relative to this file: the installed folder may be moved.
get_filename_component(_byteps_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(BYTEPS_PLUGIN_DIR "${_byteps_prefix}/lib/byteps/plugins")

if(NOT TARGET byteps::byteps)
  add_library(byteps::headers INTERFACE IMPORTED)
  set_target_properties(byteps::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_byteps_prefix}/include")
  add_library(byteps::byteps SHARED IMPORTED)
  set_target_properties(byteps::byteps PROPERTIES
    IMPORTED_LOCATION "${_byteps_prefix}/lib/libbyteps.so.1"
    IMPORTED_SONAME "libbyteps.so.1"
    INTERFACE_INCLUDE_DIRECTORIES "${_byteps_prefix}/include")
endif()

function(byteps_add_plugin kind name)
  if(NOT kind STREQUAL "transport" AND NOT kind STREQUAL "scheduler")
    message(FATAL_ERROR "byteps_add_plugin: the kind is transport or scheduler, not ${kind}")
  endif()
  set(target "byteps_${kind}_${name}")
  add_library(${target} MODULE ${ARGN})
  target_link_libraries(${target} PRIVATE byteps::headers)
  set_target_properties(${target} PROPERTIES
    PREFIX "lib" SUFFIX ".so" C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()
