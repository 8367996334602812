package study

import (
	"net"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestServerStandIn is a server for tests that need one to listen: it takes connections and says nothing. It is no test by itself.
func TestServerStandIn(t *testing.T) {
	i := slices.Index(os.Args, "--")
	if i < 0 {
		return
	}
	var listening int
	for _, arg := range os.Args[i+1:] {
		kind, address, found := strings.Cut(arg, ":")
		if !found {
			continue
		}
		l, err := net.Listen(kind, address)
		if err != nil {
			t.Fatal(err)
		}
		listening++
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_ = conn.Close()
			}
		}()
	}
	if listening > 0 {
		select {} // until its test ends it
	}
}
