package bootagent

import (
	"context"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/machine/homelink"
	"github.com/nearmetal/nearmetal/internal/virtioport"
)

// homeOptions are nfs(5)'s. The machine may be frozen at any moment and go on elsewhere much later: the kernel asks again for as long as it takes (hard).
// Others write there, too, so attributes are asked for again after a second, and a name that is missing may exist in the next moment. Locks are this
// machine's own (nolock).
const homeOptions = "vers=3,proto=tcp,mountproto=tcp,mountvers=3,nolock,hard,timeo=100,retrans=2,actimeo=1,lookupcache=positive,sec=sys"

// mountHome mounts the cluster's home. The kernel speaks to this process, which carries what it says to the host for as long as the machine runs.
func (a *Agent) mountHome(at string) error {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("the way to the home: %w", err)
	}
	go func() {
		err := homelink.Carry(context.Background(), virtioport.Listen(homelink.Port), listener, ofKernel)
		a.log.Error("the home is out of reach", "error", err)
	}()
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	port := listener.Addr().(*net.TCPAddr).Port
	options := fmt.Sprintf("%s,addr=127.0.0.1,port=%d,mountaddr=127.0.0.1,mountport=%[2]d", homeOptions, port)
	if err := unix.Mount("127.0.0.1:/", at, "nfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount the cluster's home at %s: %w", at, err)
	}
	return nil
}

// firstFreePort is the first TCP port that anybody may connect from (ip_unprivileged_port_start).
const firstFreePort = 1024

// ofKernel reports whether the peer of a connection is the kernel or root: others could say that they are whoever they like.
func ofKernel(peer net.Addr) bool {
	tcp, ok := peer.(*net.TCPAddr)
	return ok && tcp.Port < firstFreePort
}
