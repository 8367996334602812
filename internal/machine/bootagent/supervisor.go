package bootagent

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/children"
)

// supervisor is the init of the machine: it starts processes, starts those again that shall stay, and ends them all when the machine goes off.
type supervisor struct {
	log      *slog.Logger
	nonce    string
	children *children.Children
	mu       sync.Mutex
	kept     map[int]bool
	// ending is closed when the machine goes off: nothing is started any more.
	ending chan struct{}
	once   sync.Once
	// agent is the node agent's process, which goes first.
	agent int
	// nic is armed for Wake-on-LAN before the power goes.
	nic string
}

func newSupervisor(log *slog.Logger) *supervisor {
	return &supervisor{log: log, nonce: newNonce(), children: children.New(), kept: map[int]bool{}, ending: make(chan struct{})}
}

// process is a program to run.
type process struct {
	name string
	args []string
	// title is its name as ps shows it, and args[0] to itself; empty: args[0].
	title string
	env   []string
	// files are its standard input, output and error; missing ones are /dev/null.
	files []*os.File
	// keep: it is not waited for when the machine ends; all others need it until then.
	keep bool
	// spare: it runs only while nothing else wants to (SCHED_IDLE, sched(7)).
	spare bool
}

// environment of all processes that are started here.
func environment() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "USER=root"}
}

// start runs a program in a session of its own.
func (s *supervisor) start(p process) (int, <-chan syscall.WaitStatus, error) {
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return 0, nil, err
	}
	defer null.Close()
	files := make([]uintptr, max(3, len(p.files)))
	for i := range files {
		files[i] = null.Fd()
		if i < len(p.files) && p.files[i] != nil {
			files[i] = p.files[i].Fd()
		}
	}
	// Held while the process is made, so that none is made once the machine ends.
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.ending:
		return 0, nil, syscall.ESHUTDOWN
	default:
	}
	args := slices.Clone(p.args)
	if p.title != "" {
		args[0] = p.title
	}
	pid, ended, err := s.children.Start(p.args[0], args, &syscall.ProcAttr{
		Dir: "/", Env: append(environment(), p.env...), Files: files, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, nil, err
	}
	if p.keep {
		s.kept[pid] = true
	}
	if p.spare { // one that has ended or runs as all others do is no loss
		_ = unix.SchedSetAttr(pid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
	}
	return pid, ended, nil
}

// command runs a program and waits for its end.
func (s *supervisor) command(p process) (syscall.WaitStatus, error) {
	_, ended, err := s.start(p)
	if err != nil {
		return 0, err
	}
	return <-ended, nil
}

// Pauses before a process is started again: doubled each time it ends at once.
const (
	restartMin  = time.Second
	restartMax  = 30 * time.Second
	settledTime = time.Minute
)

// keep runs a program, and again when it ends, until the machine goes off. started, if any, is told each process.
func (s *supervisor) keep(p process, quiet bool, started func(pid int)) {
	pause := restartMin
	for {
		begun := time.Now()
		pid, ended, err := s.start(p)
		if err == nil {
			if started != nil {
				started(pid)
			}
			status := <-ended
			if !quiet && !s.isEnding() {
				s.log.Warn(p.name+" ended; restarting it", "status", describe(status), "in", pause)
			}
		} else if err != syscall.ESHUTDOWN {
			s.log.Error(p.name+" can't be started", "error", err, "again in", pause)
		}
		if time.Since(begun) > settledTime || quiet && err == nil {
			pause = restartMin
		}
		select {
		case <-time.After(pause):
		case <-s.ending:
			return
		}
		pause = min(pause*2, restartMax)
	}
}

func (s *supervisor) isEnding() bool {
	select {
	case <-s.ending:
		return true
	default:
		return false
	}
}

func describe(status syscall.WaitStatus) any {
	if status.Signaled() {
		return status.Signal()
	}
	return status.ExitStatus()
}

// setAgent tells which process the node agent is.
func (s *supervisor) setAgent(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.agent = pid
}

// arm tells which NIC is to be woken by.
func (s *supervisor) arm(nic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nic = nic
}

// ending is how a machine ends.
type ending int

const (
	powerOff ending = unix.LINUX_REBOOT_CMD_POWER_OFF
	reboot   ending = unix.LINUX_REBOOT_CMD_RESTART
	// nextKernel starts the kernel that was loaded for it.
	nextKernel ending = unix.LINUX_REBOOT_CMD_KEXEC
)

// Grace of the node agent, and of all others, when the machine ends.
const (
	agentGrace = 10 * time.Second
	otherGrace = 5 * time.Second
)

// end ends the machine: the node agent first, then all others, politely and then by force; what is written is on its disks. The first
// call counts. It returns at once.
func (s *supervisor) end(how ending) {
	s.once.Do(func() {
		s.mu.Lock()
		close(s.ending)
		s.mu.Unlock()
		go s.finish(how)
	})
}

func (s *supervisor) finish(how ending) {
	s.log.Warn("the machine shuts down", "reboots", how == reboot)
	s.mu.Lock()
	agent, nic := s.agent, s.nic
	s.mu.Unlock()
	if s.children.Runs(agent) && syscall.Kill(agent, syscall.SIGTERM) == nil {
		s.await(agentGrace, func() bool { return syscall.Kill(agent, 0) != nil })
	}
	// To all processes but this one.
	_ = syscall.Kill(-1, syscall.SIGTERM)
	_ = syscall.Kill(-1, syscall.SIGCONT)
	s.await(otherGrace, s.alone)
	_ = syscall.Kill(-1, syscall.SIGKILL)
	s.await(time.Second, s.alone)
	syscall.Sync()
	unmountDisks()
	if nic != "" && how == powerOff {
		if err := armWakeOnLAN(nic); err != nil && !errors.Is(err, unix.EOPNOTSUPP) { // most virtual NICs know nothing of it
			s.log.Warn("Wake-on-LAN can't be enabled on the interface", "interface", nic, "error", err)
		}
	}
	err := unix.Reboot(int(how))
	if err != nil && how == nextKernel {
		s.log.Warn("the loaded kernel can't be started; the firmware starts it instead", "error", err)
		err = unix.Reboot(int(reboot))
	}
	if err != nil {
		s.log.Error("the kernel refuses to shut down", "error", err)
	}
}

// await returns when a condition holds, or after a while.
func (s *supervisor) await(atMost time.Duration, holds func() bool) {
	for deadline := time.Now().Add(atMost); time.Now().Before(deadline) && !holds(); {
		time.Sleep(20 * time.Millisecond)
	}
}

// alone tells that no process but this one, those that are kept and the kernel's own threads is left; those have no program.
func (s *supervisor) alone() bool {
	programs, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, program := range programs {
		if _, err := os.Readlink(program); err != nil {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(program)))
		s.mu.Lock()
		kept := pid == 1 || s.kept[pid]
		s.mu.Unlock()
		if !kept {
			return false
		}
	}
	return true
}
