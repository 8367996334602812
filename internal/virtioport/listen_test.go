package virtioport

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
)

func TestAPortIsAcceptedOnceTheHostHasComeAndTheKernelHasReleasedIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end, other := net.Pipe()
		defer other.Close()
		answers := []error{ErrNoHost, &os.PathError{Op: "open", Path: "/dev/vport1p1", Err: unix.EBUSY}, nil, os.ErrNotExist}
		l := listen("test", func(name string) (net.Conn, error) {
			err := answers[0]
			answers = answers[1:]
			if err != nil {
				return nil, fmt.Errorf("port %s: %w", name, err)
			}
			return end, nil
		})
		conn, err := l.Accept()
		if err != nil {
			t.Fatalf("a port that was busy for a moment: %v", err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Accept(); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a port that does not exist: %v", err)
		}
	})
}
