package opensm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/keys"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/smp"
	"github.com/nearmetal/nearmetal/internal/pidfd"
)

// Supervisor keeps an OpenSM running on this machine. OpenSM outlives it: the fabric is not without a subnet manager while a server is replaced.
// The next Supervisor finds it by the file of partitions that it reads.
type Supervisor struct {
	Manager
	// Partitions is the file of partitions, as in Config.
	Partitions string
	// Options is a file of OpenSM's options; "": OpenSM's own defaults.
	Options string
	// Keys protect the fabric; the zero value: OpenSM has those of Options, or none.
	Keys keys.Keys
	// LogDir is the folder of its log and caches, which Run makes.
	LogDir string
	// Run makes the command; nil: exec.CommandContext. It may set SysProcAttr, such as to let OpenSM end with this process.
	Run smp.Runner
	Log *slog.Logger
}

// Program is OpenSM's.
const Program = "opensm"

const (
	firstRestart, lastRestart = time.Second, 30 * time.Second
	// steady is how long OpenSM runs until its next end counts as the first.
	steady = time.Minute
	// logMegabytes is where OpenSM begins its log anew.
	logMegabytes = 64
)

// Keep keeps OpenSM running until ctx ends, and leaves it running then.
func (s Supervisor) Keep(ctx context.Context) {
	if s.Run == nil {
		s.Run = command
	}
	pause := firstRestart
	for ctx.Err() == nil {
		begun := time.Now()
		err := s.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(begun) > steady {
			pause = firstRestart
		}
		s.Log.ErrorContext(ctx, "OpenSM has ended; restarting it", "port", s.GUID, "error", err, "pause", pause)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
		pause = min(2*pause, lastRestart)
	}
}

// once starts OpenSM unless it runs, and waits for its end.
func (s Supervisor) once(ctx context.Context) error {
	processes, err := running(s.Partitions)
	if err != nil {
		return err
	}
	defer closeAll(processes)
	if len(processes) > 0 {
		s.Log.InfoContext(ctx, "found OpenSM running", "partitions", s.Partitions)
		return processes[0].Wait(ctx)
	}
	return s.start(ctx)
}

func (s Supervisor) start(ctx context.Context) error {
	if err := os.MkdirAll(s.LogDir, 0o700); err != nil {
		return err
	}
	args := []string{
		"-g", "0x" + s.GUID, "-p", fmt.Sprint(s.Priority), "-P", s.Partitions, "-f", filepath.Join(s.LogDir, "opensm.log"), "-L", fmt.Sprint(logMegabytes),
	}
	options, err := s.options()
	if err != nil {
		return err
	}
	if options != "" {
		args = append(args, "-F", options)
	}
	out, err := os.OpenFile(filepath.Join(s.LogDir, "opensm.out"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	cmd := s.Run(context.WithoutCancel(ctx), Program, args...)
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, "OSM_TMP_DIR="+s.LogDir, "OSM_CACHE_DIR="+s.LogDir)
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	}
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		// Where Run binds it to this process (Pdeathsig), it is bound to the thread that starts it (prctl(2)).
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start OpenSM: %w; install the package opensm", err)
	}
	s.Log.InfoContext(ctx, "started OpenSM", "port", s.GUID, "priority", s.Priority, "pid", cmd.Process.Pid)
	select {
	case err := <-ended:
		return errors.Join(errors.New("see "+filepath.Join(s.LogDir, "opensm.log")), err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// options returns the file of OpenSM's options: the operator's, or with keys one that has both; "": OpenSM's own defaults.
func (s Supervisor) options() (string, error) {
	if s.Keys == (keys.Keys{}) {
		return s.Options, nil
	}
	operator := ""
	if s.Options != "" {
		text, err := os.ReadFile(s.Options)
		if err != nil {
			return "", fmt.Errorf("the options of OpenSM: %w", err)
		}
		operator = string(text)
	}
	text, err := s.Keys.Options(operator)
	if err != nil {
		return "", fmt.Errorf("%s: %w", s.Options, err)
	}
	path := filepath.Join(s.LogDir, "opensm.conf")
	return path, durablefile.Write(path, []byte(text), 0o600)
}

// Stop ends the OpenSM processes of this machine that read a file of partitions, as when a site that was for development alone is left.
func Stop(ctx context.Context, partitions string) error {
	processes, err := running(partitions)
	if err != nil {
		return err
	}
	defer closeAll(processes)
	for _, p := range processes {
		if err := end(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// stopTime is how long OpenSM may take to end before it is killed.
const stopTime = 5 * time.Second

func end(ctx context.Context, p *pidfd.Process) error {
	patience, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	if err := p.Signal(unix.SIGTERM); err != nil {
		return err
	}
	if p.Wait(patience) == nil {
		return nil
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		return err
	}
	return p.Wait(ctx)
}
