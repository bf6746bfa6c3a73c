#%Module1.0
# Environment Modules (Tcl). Copy it to a directory of MODULEPATH as pinnace/VERSION, and set `root` to the installation.
set root /opt/pinnace

proc ModulesHelp { } {
    puts stderr "Kubernetes clusters inside your Slurm jobs. Begin with `pinnace doctor`, then `pinnace up -N 2`."
}
module-whatis "Kubernetes, complete and unmodified, inside Slurm jobs"

# A directory with a link to pinnace alone: bin/ of the installation has a Python, which would hide the user's.
prepend-path PATH $root/share/pinnace/bin
# Defaults for all users are in /etc/pinnace.toml, or in share/pinnace/pinnace.toml of the installation.
