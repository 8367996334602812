package bootagent

import (
	"net"
	"testing"
)

func TestOnlyTheKernelSpeaksToTheHome(t *testing.T) {
	for port, want := range map[int]bool{1: true, 665: true, 1023: true, 1024: false, 40000: false} {
		if got := ofKernel(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}); got != want {
			t.Errorf("a connection from port %d: %t, want %t", port, got, want)
		}
	}
	if ofKernel(&net.UnixAddr{}) {
		t.Error("a connection without a port was taken for the kernel's")
	}
}
