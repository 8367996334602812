package ibsim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Manager is a subnet manager, OpenSM, on a host of a fabric.
type Manager struct {
	cmd  *exec.Cmd
	log  string
	done <-chan struct{}
}

// quickTakeover makes a standby notice in less than a second that the master is gone, instead of in 40 seconds.
const quickTakeover = "sminfo_polling_timeout 200\npolling_retry_number 2\n"

// Manage starts OpenSM on a host and waits until it is master or standby. Partitions is the path of its partitions file, which need not exist;
// "": none. The higher of two priorities, 0 to 15, becomes master. It sweeps when it is signalled or a link changes, and not by time.
func (f *Fabric) Manage(ctx context.Context, host string, priority int, partitions string) (*Manager, error) {
	h, ok := f.Host(host)
	if !ok {
		return nil, fmt.Errorf("the fabric has no host %s", host)
	}
	dir, err := os.MkdirTemp(f.dir, "opensm")
	if err != nil {
		return nil, err
	}
	if partitions == "" {
		partitions = filepath.Join(dir, "partitions.conf")
	}
	options := filepath.Join(dir, "opensm.conf")
	if err := os.WriteFile(options, []byte(quickTakeover), 0o600); err != nil {
		return nil, err
	}
	m := &Manager{log: filepath.Join(dir, "opensm.log")}
	m.cmd = f.Command(context.WithoutCancel(ctx), host, "opensm", "-g", "0x"+h.PortGUID(), "-p", fmt.Sprint(priority), "-f", m.log, "-P", partitions, "-F", options, "-s", "0", "-d2")
	m.cmd.Env = append(m.cmd.Env, "OSM_TMP_DIR="+dir, "OSM_CACHE_DIR="+dir)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if m.done, err = startBound(m.cmd); err != nil {
		return nil, fmt.Errorf("start OpenSM: %w", err)
	}
	if err := m.await(ctx); err != nil {
		m.Stop()
		return nil, err
	}
	return m, nil
}

// await returns when the log says that the subnet is up, or that another subnet manager is master.
func (m *Manager) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		text, _ := os.ReadFile(m.log)
		if bytes.Contains(text, []byte("SUBNET UP")) || bytes.Contains(text, []byte("Entering STANDBY")) {
			return nil
		}
		select {
		case <-m.done:
			return fmt.Errorf("OpenSM has ended; its log: %s", text)
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("OpenSM did not bring the subnet up; its log: %s", text), ctx.Err())
		case <-tick.C:
		}
	}
}

// Signal sends OpenSM a signal; SIGHUP makes it read its partitions again.
func (m *Manager) Signal(s os.Signal) error { return m.cmd.Process.Signal(s) }

// Log returns the path of its log.
func (m *Manager) Log() string { return m.log }

// Stop ends it at once, as a power cut would.
func (m *Manager) Stop() {
	_ = m.cmd.Process.Kill()
	<-m.done
}

// Sweeps returns how many times it has brought the subnet up.
func (m *Manager) Sweeps() int {
	text, _ := os.ReadFile(m.log)
	return bytes.Count(text, []byte("SUBNET UP"))
}
