#!/bin/bash
# In the guest: two hosts with two NICs each, in one network namespace, because rxe serves the first one only.
#
#   host 0                                              host 1
#   va0  10.1.0.1  rva0  ====== veth, MTU 9000 ======  va1  10.1.0.2  rva1
#   vb0  10.2.0.1  rvb0  ====== veth, MTU 9000 ======  vb1  10.2.0.2  rvb1
#
# RDMA traffic between the ends of a pair crosses the veth and not lo: rxe binds each lookup of a route to its
# interface. TCP between the same addresses goes over lo.
set -euo pipefail

ip link set lo up
for key in accept_local=1 rp_filter=0; do
    for place in all default; do echo "${key#*=}" >"/proc/sys/net/ipv4/conf/$place/${key%=*}"; done
done
pair() { # its letter, its network
    local a=v${1}0 b=v${1}1
    ip link add "$a" type veth peer name "$b"
    for end in "$a" "$b"; do
        echo 1 >"/proc/sys/net/ipv4/conf/$end/accept_local"
        echo 0 >"/proc/sys/net/ipv4/conf/$end/rp_filter"
        ip link set "$end" mtu 9000
    done
    ip addr add "$2.1/24" dev "$a"
    ip addr add "$2.2/24" dev "$b"
    ip link set "$a" up
    ip link set "$b" up
    # Known from the start, so that no first packet waits for ARP. `ip link set ... down` forgets the entry, and
    # ARP finds it again after `up`, thanks to accept_local.
    ip neigh replace "$2.2" lladdr "$(cat "/sys/class/net/$b/address")" nud permanent dev "$a"
    ip neigh replace "$2.1" lladdr "$(cat "/sys/class/net/$a/address")" nud permanent dev "$b"
    rdma link add "r$a" type rxe netdev "$a"
    rdma link add "r$b" type rxe netdev "$b"
}
pair a 10.1.0
pair b 10.2.0
