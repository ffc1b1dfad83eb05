# shellcheck shell=bash disable=SC2034 # sourced: leash is for the scripts
# How a script starts a process that must not outlive it: "${leash[@]}" COMMAND... &
# In a session of its own, so that Ctrl-C reaches the script alone; and should the script be killed
# with -9, the kernel kills the process as well. That is safe for a crawler: nothing is lost, unfinished seeds are repeated.
leash=(setsid)
if setpriv --pdeathsig KILL true 2>/dev/null; then leash+=(setpriv --pdeathsig KILL); fi
