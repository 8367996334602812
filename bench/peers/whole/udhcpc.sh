#!/bin/busybox sh
# What udhcpc does with an address (busybox, examples/udhcp/simple.script has the variables).
[ "$1" = bound ] || [ "$1" = renew ] || exit 0
ip addr add "$ip/${mask:-24}" dev "$interface"
echo "$ip" >/run/address
