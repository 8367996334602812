package virtioport

import (
	"net"
	"path/filepath"
	"testing"
)

func TestWhatASocketsPeerHasNotReadIsNotTaken(t *testing.T) {
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := net.Dial("unix", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	peer, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	if !Taken(conn) {
		t.Error("nothing was written, and it is not taken")
	}
	if _, err := conn.Write([]byte("word")); err != nil {
		t.Fatal(err)
	}
	if Taken(conn) {
		t.Error("nobody has read it, and it is taken")
	}
	if _, err := peer.Read(make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	if !Taken(conn) {
		t.Error("all of it was read, and it is not taken")
	}
	one, other := net.Pipe()
	defer one.Close()
	defer other.Close()
	if !Taken(one) {
		t.Error("a connection that is no socket has something that is not taken")
	}
}
