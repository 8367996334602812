package main

import (
	"encoding/binary"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// frameOf is a packet of UDP or TCP in IPv4 and Ethernet.
func frameOf(t *testing.T, from, to string, protocol byte, source, target uint16, flags byte, content []byte) []byte {
	t.Helper()
	header := 8
	if protocol == unix.IPPROTO_TCP {
		header = 20
	}
	f := make([]byte, 14+20+header, 14+20+header+len(content))
	for at, text := range map[int]string{0: to, 6: from} {
		mac, err := net.ParseMAC(text)
		if err != nil {
			t.Fatal(err)
		}
		copy(f[at:], mac)
	}
	binary.BigEndian.PutUint16(f[12:], unix.ETH_P_IP)
	f[14], f[14+9] = 0x45, protocol
	binary.BigEndian.PutUint16(f[14+2:], uint16(20+header+len(content)))
	binary.BigEndian.PutUint16(f[34:], source)
	binary.BigEndian.PutUint16(f[36:], target)
	if protocol == unix.IPPROTO_TCP {
		f[34+12], f[34+13] = 5<<4, flags
	}
	return append(append(f, content...), 0, 0) // padded, as short ones are
}

func TestABootIsToldByItsPacketsAndItsConsole(t *testing.T) {
	const machine, server, all = "52:54:00:00:00:01", "52:54:00:00:00:02", "ff:ff:ff:ff:ff:ff"
	w := &watch{boots: map[string]*seenBoot{machine: {}}}
	now := time.Unix(1000, 0)
	at := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	dhcp := make([]byte, 240)
	mac, _ := net.ParseMAC(machine)
	copy(dhcp[28:], mac)
	see := func(second int, from, to string, protocol byte, source, target uint16, flags byte, content []byte) {
		w.frame(frameOf(t, from, to, protocol, source, target, flags, content), at(second))
	}
	see(1, machine, all, unix.IPPROTO_UDP, 68, 67, 0, append(dhcp, "PXEClient"...))
	see(2, server, all, unix.IPPROTO_UDP, 67, 68, 0, dhcp)
	see(3, machine, server, unix.IPPROTO_TCP, 999, bootHTTPPort, 0x10, []byte("GET /boot.ipxe HTTP/1.1\r\n\r\n"))
	see(4, server, machine, unix.IPPROTO_TCP, bootHTTPPort, 999, 0x10, []byte("#!ipxe"))
	see(5, server, machine, unix.IPPROTO_TCP, bootHTTPPort, 999, 0x10, []byte("kernel"))
	see(6, server, machine, unix.IPPROTO_TCP, bootHTTPPort, 999, 0x11, nil)
	see(7, machine, all, unix.IPPROTO_UDP, 68, 67, 0, append(dhcp, "nearmetal-boot"...))
	see(8, machine, server, unix.IPPROTO_TCP, 998, bootTLSPort, 0x02, nil)
	see(9, server, machine, unix.IPPROTO_TCP, bootHTTPPort, 999, 0x10, []byte("a piece of the root"))
	for i, line := range []string{
		"[    1.0] nearmetal: welcome name=b1\r\n", "[    2.0] nearmetal: root mounted read_bytes=1\r\n",
		"[    3.0] nearmetal: node agent started read_bytes=2\r\n", "[    4.0] nearmetal: the root is entirely local\r\n",
	} {
		if last := w.printed(machine, line, at(10+i)); last != (i == 3) {
			t.Errorf("line %d is the last: %v", i, last)
		}
	}
	got := w.seen(machine)
	for name, test := range map[string]struct {
		got  time.Time
		want int
	}{
		"first DHCP": {got.FirstDHCP, 1}, "loaded": {got.LastLoader, 5}, "call": {got.Call, 8}, "welcome": {got.Welcome, 10}, "mounted": {got.Mounted, 11},
		"agent": {got.AgentRuns, 12}, "local": {got.Local, 13},
	} {
		if !test.got.Equal(at(test.want)) {
			t.Errorf("%s: %s, want second %d", name, test.got, test.want)
		}
	}
	if len(got.Offers) != 1 || got.Offers[0] != time.Second || len(got.Scripts) != 1 || got.Scripts[0] != time.Second || got.AgentRead != "read_bytes=2" {
		t.Errorf("offers %v, scripts %v, read %q; want one of a second each, and read_bytes=2", got.Offers, got.Scripts, got.AgentRead)
	}
}
