package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/gpu"
	"github.com/nearmetal/nearmetal/internal/trust/subject"
)

// A server of remote GPUs is a container as a member is: with its cluster's user IDs, a port on its cluster's network, a control group, and the node's own
// /usr. What runs in it are calls of its member's programs, some of which are programs themselves. Its first process tells it from a member.

var _ driver.PartCarrier = (*Driver)(nil)

const (
	gpuSocketDir = gpu.Dir + "/socket"
	// gpuSocketName is that directory in the control directory of the server, where the agent keeps what is its own.
	gpuSocketName = "gpu"
	// gpuSocket is the server's socket in there.
	gpuSocket = gpuSocketDir + "/server"
	// gpuTLSDir is where a server has its certificate, by which members know it and it knows its member.
	gpuTLSDir = "/etc/nearmetal/tls"
	// gpuListenPause is between two looks whether a server listens.
	gpuListenPause = 20 * time.Millisecond
)

// StartPart starts the server of a member's remote GPUs, and returns once it listens.
func (d *Driver) StartPart(ctx context.Context, m driver.Member) error {
	if err := d.Start(ctx, m); err != nil {
		return err
	}
	if err := d.awaitListening(ctx, m.Assignment.ID); err != nil {
		return fmt.Errorf("starting the GPU server of member %q: %w", m.Assignment.Of, err)
	}
	return nil
}

// awaitListening waits until a server takes connections.
func (d *Driver) awaitListening(ctx context.Context, id string) error {
	for {
		conn, err := d.Dial(ctx, id, api.PortGPUServer)
		if err == nil {
			return conn.Close()
		}
		h, failed := d.host()
		if failed != nil {
			return failed
		}
		if seen := d.look(h, id); !seen.alive() {
			return errors.New(d.observation(id, seen).Message)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(gpuListenPause):
		}
	}
}

// asContainer completes the assignment of a server of remote GPUs with what every container has. Others stay as they are.
func (d *Driver) asContainer(m driver.Member) (driver.Member, error) {
	a := &m.Assignment
	if !a.ServesGPU() {
		return m, nil
	}
	if len(d.cfg.ServerCPUs) == 0 || len(d.cfg.ServerMemory) == 0 {
		return m, errors.New("this node runs no servers of GPUs: its agent has no CPUs for them")
	}
	a.Environment, a.CPUs, a.NUMANodes = environment.LocalName, d.cfg.ServerCPUs, d.cfg.ServerMemory
	// It has the memory that the leader took for it from what the node offers, from whichever memory nodes its CPUs are near to.
	bytes := api.ServerMemoryBytes(a.Devices)
	a.Memory = nil
	for i, node := range d.cfg.ServerMemory {
		a.Memory = append(a.Memory, api.MemoryClaim{NUMANode: node})
		if i == 0 {
			a.Memory[0].Bytes = bytes
		}
	}
	m.HomeDir = ""
	return m, nil
}

// gpuServerArgs is the command line of a server: it serves the member's cluster by TCP, and the member itself by a socket if it is on this node.
func gpuServerArgs(a *api.Assignment) []string {
	member := subject.Subject{Kind: subject.Workload, Name: a.ClusterUID, ID: a.Of}
	least := a.Devices[0].Times()
	for _, c := range a.Devices {
		least = min(least, c.Times())
	}
	return []string{
		gpu.Dir + "/server", "--supervise", "--listen", fmt.Sprintf("tcp:%s:%d", a.Address(), api.PortGPUServer), "--listen", "unix:" + gpuSocket,
		"--memory-mib", fmt.Sprint(least), "--memory-together", "--counts", gpuSocketDir + "/" + gpuCountsName, "--tls", gpuTLSDir, "--member", member.String(),
	}
}

// socketDir makes the directory of a server's socket: the server's to write to, and its member's to reach it by.
func socketDir(dir string, owner uint32) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return errors.Join(unix.Chmod(dir, 0o755), os.Lchown(dir, int(owner), int(owner)))
}

// makeSocketDir makes the directory by which a member and the server of its GPUs meet, whichever of both is first.
func makeSocketDir(m *driver.Member) error {
	if dir := gpuSocketSource(m); dir != "" {
		if err := socketDir(dir, m.Assignment.UserIDs.First); err != nil {
			return fmt.Errorf("making the directory of its GPU server's socket: %w", err)
		}
	}
	return nil
}

// gpuSocketSource is the directory of the host with the socket of a member's GPU server, or of the server that the assignment is, "" for none.
func gpuSocketSource(m *driver.Member) string {
	switch {
	case m.Assignment.ServesGPU():
		return filepath.Join(m.ControlDir, gpuSocketName)
	case m.GPUServer != nil:
		if m.GPUServer.ControlDir == "" {
			return ""
		}
		return filepath.Join(m.GPUServer.ControlDir, gpuSocketName)
	default:
		return ""
	}
}
