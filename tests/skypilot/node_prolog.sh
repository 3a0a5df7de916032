#!/bin/sh
# Prolog of slurm.conf(5), on every node of a job. A job of SkyPilot's finds there what SkyPilot would download: uv
# and a Python environment with SkyPilot's dependencies (SkyPilot itself it sends and installs), and torchrun.
export PATH=/usr/local/bin:/usr/bin:/bin SLURM_CONF='@CONF@'
name=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%j)
[ -n "$name" ] && [ -f '@HOME@/.sky_provision/'"$name.sh" ] || exit 0
home='@HOME@/.sky_clusters/'"$name"
runtime="/tmp/$name/skypilot-runtime"
[ ! -d "$runtime" ] || exit 0
{
    mkdir -p "$home/.local/bin" && ln -sfn '@VENV@/bin/uv' "$home/.local/bin/uv" &&
        echo 'PATH+=:@SITE_BIN@' > "$home/.bashrc" &&
        '@VENV@/bin/python' -m venv --without-pip "$runtime.new" && cd "$runtime.new/lib"/python3.* &&
        ln -s '@VENV@'/lib/python3.*/site-packages/* site-packages/ &&
        rm -f site-packages/sky site-packages/sky_templates site-packages/*.dist-info &&
        cp -r '@VENV@'/lib/python3.*/site-packages/*.dist-info site-packages/ && # uv does not follow links here
        rm -r site-packages/skypilot-*.dist-info &&
        sed -i "s|$runtime.new|$runtime|" "$runtime.new"/bin/activate* && mv "$runtime.new" "$runtime"
} > '@HOME@/prolog.'"${SLURMD_NODENAME:-$$}.log" 2>&1
exit 0
