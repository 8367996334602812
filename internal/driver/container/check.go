package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cgroup"
)

// Check tells what this host lacks to carry containers. It changes nothing.
func (d *Driver) Check(ctx context.Context) api.StackCheck {
	check := api.StackCheck{Stack: api.StackContainer}
	problem := func(err error) {
		if err != nil {
			check.Problems = append(check.Problems, err.Error())
		}
	}
	_, err := d.findRuntime()
	problem(err)
	problem(checkCgroups(d.cfg.group()))
	_, err = emptyPlace(stagingPlaces)
	problem(err)
	if os.Geteuid() != 0 {
		problem(errNotRoot)
	} else {
		problem(checkUserNamespaces())
	}
	if info, err := os.Stat(d.cfg.MemberBinary); err != nil {
		problem(fmt.Errorf("the member agent's binary is missing: %w", err))
	} else if info.Mode()&0o111 == 0 {
		problem(fmt.Errorf("the member agent's binary %s is not executable; run: chmod 0755 %s", d.cfg.MemberBinary, d.cfg.MemberBinary))
	}
	if err := ctx.Err(); err != nil {
		problem(err)
	}
	check.OK = len(check.Problems) == 0
	return check
}

func checkCgroups(group string) error {
	groups, err := cgroup.Find(group)
	if err != nil {
		return err
	}
	return groups.Check()
}

// checkUserNamespaces makes one and lets it go.
func checkUserNamespaces() error {
	holder, err := holdUserNamespace()
	if err != nil {
		return fmt.Errorf("no user namespace can be made; run: sysctl -w user.max_user_namespaces=10000 (%w)", err)
	}
	return holder.end()
}

// namespaceHolder is a process that does nothing but be in a user namespace.
type namespaceHolder struct {
	cmd  *exec.Cmd
	hold *os.File
}

func holdUserNamespace() (*namespaceHolder, error) {
	return holdMapped([]syscall.SysProcIDMap{{HostID: 1_000_000, Size: 65536}})
}

func holdMapped(mappings []syscall.SysProcIDMap) (*namespaceHolder, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	cmd := exec.Command("/bin/cat") // reads the pipe until it is closed
	cmd.Stdin = read
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: mappings, GidMappings: mappings}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, write.Close())
	}
	return &namespaceHolder{cmd: cmd, hold: write}, nil
}

func (n *namespaceHolder) end() error { return errors.Join(n.hold.Close(), n.cmd.Wait()) }
