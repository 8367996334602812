package member

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/children"
)

// jobPath is where a job's command is looked for when neither the job nor the cluster says otherwise.
const jobPath = "/usr/local/bin:/usr/bin:/bin"

// Exit codes of commands that could not be run, as shells give them (POSIX, Shell Command Language, 2.8.2).
const (
	exitNotFound      = 127
	exitNotExecutable = 126
)

// launchError says why a job could not be started. exitCode is 0 when the command is not to blame.
type launchError struct {
	message  string
	exitCode int
}

func (e *launchError) Error() string { return e.message }

// launch starts a job, with its output going to out.
func (j *jobs) launch(wanted api.Job, out io.Writer) (*run, *launchError) {
	if len(wanted.Command) == 0 {
		return nil, &launchError{"the job has no command", exitNotFound}
	}
	dir := j.cfg.User.Home
	if wanted.Directory != "" {
		dir = wanted.Directory
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(j.cfg.User.Home, dir)
		}
	}
	return launch(j.cfg, j.children, dir, jobEnv(j.cfg, wanted), jobArgs(j.cfg, wanted), out)
}

// launch starts a command in a session of its own as the member's user, with its output going to out.
func launch(cfg Config, children *children.Children, dir string, env map[string]string, args []string, out io.Writer) (*run, *launchError) {
	user := cfg.User
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, &launchError{fmt.Sprintf("the working directory %s does not exist in member %s", dir, cfg.Member), 0}
	}
	path, lookErr := lookCommand(args[0], dir, env["PATH"])
	if lookErr != nil {
		return nil, lookErr
	}
	attr := &syscall.ProcAttr{Dir: dir, Env: environ(env), Sys: &syscall.SysProcAttr{Setsid: true}}
	if int(user.UID) != os.Geteuid() {
		attr.Sys.Credential = &syscall.Credential{Uid: user.UID, Gid: user.GID, Groups: []uint32{user.GID}}
	}
	return startRun(children, path, args, attr, out)
}

// jobArgs is the command line: MPI jobs are started by mpirun over the cluster's hostfile, with the job's variables carried to
// all ranks (Open MPI carries its own, OMPI_..., by itself).
func jobArgs(cfg Config, wanted api.Job) []string {
	if wanted.Ranks <= 0 {
		return wanted.Command
	}
	args := []string{
		"mpirun", "-n", fmt.Sprint(wanted.Ranks), "--hostfile", cfg.Hostfile, "-x", "NEARMETAL_JOB_ID", "-x", "NEARMETAL_JOB_ATTEMPT",
	}
	for _, name := range slices.Sorted(maps.Keys(wanted.Env)) {
		if !strings.HasPrefix(name, "OMPI_") && name != "NEARMETAL_JOB_ID" && name != "NEARMETAL_JOB_ATTEMPT" {
			args = append(args, "-x", name)
		}
	}
	return append(args, wanted.Command...)
}

// jobEnv is a job's environment: that of the user, then the job's own.
func jobEnv(cfg Config, wanted api.Job) map[string]string {
	env := userEnv(cfg)
	if name := forwardSignal(wanted); wanted.Ranks > 0 && name != "" {
		env["OMPI_MCA_ess_base_forward_signals"], env["PRTE_MCA_ess_base_forward_signals"] = name, name
	}
	maps.Copy(env, wanted.Env)
	env["NEARMETAL_JOB_ID"] = wanted.ID
	env["NEARMETAL_JOB_ATTEMPT"] = strconv.Itoa(wanted.Attempt)
	env["NEARMETAL_MEMBER"] = cfg.Member
	return env
}

// userEnv is the environment of a login, then the cluster's.
func userEnv(cfg Config) map[string]string {
	env := map[string]string{
		"HOME": cfg.User.Home, "USER": cfg.User.Name, "LOGNAME": cfg.User.Name, "SHELL": cfg.User.Shell, "PATH": jobPath, "LANG": "C.UTF-8",
	}
	maps.Copy(env, cfg.Env)
	env["NEARMETAL_MEMBER"] = cfg.Member
	return env
}

func environ(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// lookCommand finds the program of a command as a shell would.
func lookCommand(name, dir, path string) (string, *launchError) {
	var candidates []string
	if strings.Contains(name, "/") {
		candidates = []string{name}
	} else {
		for _, entry := range filepath.SplitList(path) {
			candidates = append(candidates, filepath.Join(entry, name))
		}
	}
	failure := &launchError{fmt.Sprintf("command %q is not in the member's PATH (%s)", name, path), exitNotFound}
	if strings.Contains(name, "/") {
		failure.message = fmt.Sprintf("command %q does not exist in the member", name)
	} else if name == "mpirun" {
		failure.message = "mpirun is not in the member's PATH (" + path + "): the environment brings no MPI"
	}
	for _, candidate := range candidates {
		if !filepath.IsAbs(candidate) {
			candidate = filepath.Join(dir, candidate)
		}
		info, err := os.Stat(candidate)
		switch {
		case err != nil:
		case info.IsDir():
			failure = &launchError{fmt.Sprintf("command %q is a directory", candidate), exitNotExecutable}
		case info.Mode()&0o111 == 0:
			failure = &launchError{fmt.Sprintf("command %q can't be executed: its mode is %v", candidate, info.Mode()&fs.ModePerm), exitNotExecutable}
		default:
			return candidate, nil
		}
	}
	return "", failure
}

// exitCode is the exit code of a process, 128 + N when signal N ended it.
func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}
