-- Lmod. Copy it to a directory of MODULEPATH as pinnace/VERSION.lua, and set `root` to the installation.
local root = "/opt/pinnace"

help([[
Kubernetes clusters inside your Slurm jobs. Begin with `pinnace doctor`, then `pinnace up -N 2`.
]])
whatis("Name: pinnace")
whatis("Description: Kubernetes, complete and unmodified, inside Slurm jobs")

-- A directory with a link to pinnace alone: bin/ of the installation has a Python, which would hide the user's.
prepend_path("PATH", pathJoin(root, "share/pinnace/bin"))
-- Defaults for all users are in /etc/pinnace.toml, or in share/pinnace/pinnace.toml of the installation.
