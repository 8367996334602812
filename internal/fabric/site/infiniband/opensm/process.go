package opensm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/pidfd"
)

// The files that OpenSM reads unless its command line or its configuration says otherwise.
const (
	defaultPartitions = "/etc/opensm/partitions.conf"
	defaultConfig     = "/etc/opensm/opensm.conf"
)

// ErrNotRunning means that no OpenSM on this machine reads the file of partitions.
var ErrNotRunning = errors.New("no OpenSM on this machine reads it")

// running returns the OpenSM processes of this machine that read a file of partitions. The caller closes them.
func running(partitions string) ([]*pidfd.Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []*pidfd.Process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || !isManager(pid, partitions) {
			continue
		}
		process, err := pidfd.Open(pid)
		if errors.Is(err, pidfd.ErrNone) {
			continue
		}
		if err != nil {
			closeAll(all)
			return nil, err
		}
		if !isManager(pid, partitions) { // the number may have changed hands before it was held
			process.Close()
			continue
		}
		all = append(all, process)
	}
	return all, nil
}

func closeAll(processes []*pidfd.Process) {
	for _, p := range processes {
		p.Close()
	}
}

// isManager reports whether a process is an OpenSM that reads a file of partitions.
func isManager(pid int, partitions string) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return false
	}
	args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
	if filepath.Base(args[0]) != Program {
		return false
	}
	path := partitionsOf(args[1:], func(file string) (string, error) {
		if !filepath.IsAbs(file) {
			file = filepath.Join(dir, "cwd", file)
		}
		data, err := os.ReadFile(file)
		return string(data), err
	})
	if !filepath.IsAbs(path) {
		cwd, err := os.Readlink(filepath.Join(dir, "cwd"))
		if err != nil {
			return false
		}
		path = filepath.Join(cwd, path)
	}
	return same(path, partitions)
}

func same(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	x, errX := filepath.EvalSymlinks(a)
	y, errY := filepath.EvalSymlinks(b)
	return errX == nil && errY == nil && x == y
}

// partitionsOf returns the file of partitions that an OpenSM with these arguments reads (opensm(8): -P, -F and partition_config_file).
func partitionsOf(args []string, read func(file string) (string, error)) string {
	if path, ok := option(args, 'P', "Pconfig"); ok {
		return path
	}
	config, ok := option(args, 'F', "config")
	if !ok {
		config = defaultConfig
	}
	if text, err := read(config); err == nil {
		lines := bufio.NewScanner(strings.NewReader(text))
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) >= 2 && fields[0] == "partition_config_file" && fields[1] != "(null)" {
				return fields[1]
			}
		}
	}
	return defaultPartitions
}

// option returns the value of -x VALUE, -xVALUE, --long VALUE or --long=VALUE.
func option(args []string, short byte, long string) (string, bool) {
	for i, arg := range args {
		if value, found := strings.CutPrefix(arg, "--"+long+"="); found {
			return value, true
		}
		if arg == "--"+long || arg == "-"+string(short) {
			if i+1 < len(args) {
				return args[i+1], true
			}
			continue
		}
		if len(arg) > 2 && arg[0] == '-' && arg[1] == short {
			return arg[2:], true
		}
	}
	return "", false
}

// Reload makes each OpenSM of this machine that reads a file of partitions read it again. It returns ErrNotRunning when there is none.
func Reload(_ context.Context, partitions string) error {
	processes, err := running(partitions)
	if err != nil {
		return err
	}
	defer closeAll(processes)
	if len(processes) == 0 {
		return fmt.Errorf("%s: %w", partitions, ErrNotRunning)
	}
	for _, p := range processes {
		if err := p.Signal(unix.SIGHUP); err != nil {
			return fmt.Errorf("tell OpenSM to read %s: %w", partitions, err)
		}
	}
	return nil
}
