# `make install`: library, header, pkg-config file, man pages and command.
configure_file(${PROJECT_SOURCE_DIR}/packaging/moonbright.pc.in ${CMAKE_BINARY_DIR}/moonbright.pc @ONLY)

install(TARGETS moonbright_static moonbright_shared
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${PROJECT_SOURCE_DIR}/include/moonbright.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_BINARY_DIR}/moonbright.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TARGET moonbright)
    install(TARGETS moonbright RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    install(FILES ${PROJECT_SOURCE_DIR}/doc/man/moonbright.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    # The command finds its data at ../share/moonbright, in the build directory by a link.
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/data/ DESTINATION ${CMAKE_INSTALL_DATADIR}/moonbright)
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/share)
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/data ${CMAKE_BINARY_DIR}/share/moonbright SYMBOLIC)
endif()
