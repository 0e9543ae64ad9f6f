# find_package(octaplex): the targets octaplex::octaplex (shared) and octaplex::static. Found beside this file, wherever
# the installation was moved to.
get_filename_component(_octaplex_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
find_path(OCTAPLEX_INCLUDE_DIR octaplex.h HINTS "${_octaplex_prefix}/include" NO_DEFAULT_PATH)
foreach(_octaplex_kind SHARED STATIC)
  set(CMAKE_FIND_LIBRARY_SUFFIXES_SAVED ${CMAKE_FIND_LIBRARY_SUFFIXES})
  set(CMAKE_FIND_LIBRARY_SUFFIXES ${CMAKE_${_octaplex_kind}_LIBRARY_SUFFIX})
  file(GLOB _octaplex_folders "${_octaplex_prefix}/lib" "${_octaplex_prefix}/lib64" "${_octaplex_prefix}/lib/*-linux-gnu*")
  find_library(OCTAPLEX_${_octaplex_kind}_LIBRARY octaplex HINTS ${_octaplex_folders} NO_DEFAULT_PATH)
  set(CMAKE_FIND_LIBRARY_SUFFIXES ${CMAKE_FIND_LIBRARY_SUFFIXES_SAVED})
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(octaplex REQUIRED_VARS OCTAPLEX_SHARED_LIBRARY OCTAPLEX_STATIC_LIBRARY OCTAPLEX_INCLUDE_DIR)
if(octaplex_FOUND AND NOT TARGET octaplex::octaplex)
  find_package(Threads REQUIRED)
  add_library(octaplex::octaplex SHARED IMPORTED)
  set_target_properties(octaplex::octaplex PROPERTIES
    IMPORTED_LOCATION "${OCTAPLEX_SHARED_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${OCTAPLEX_INCLUDE_DIR}")
  add_library(octaplex::static STATIC IMPORTED)
  set_target_properties(octaplex::static PROPERTIES
    IMPORTED_LOCATION "${OCTAPLEX_STATIC_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${OCTAPLEX_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
endif()
