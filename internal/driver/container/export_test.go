package container

import (
	"fmt"
	"os"
)

// StagedDir is a path to a member's staged files that other processes can use.
func (d *Driver) StagedDir(id string) string {
	return fmt.Sprintf("/proc/%d/fd/%d/members/%s", os.Getpid(), d.opened.spawner.dir.Fd(), id)
}

// Group is the name of the node's control group below nearmetal.
func (c Config) Group() string { return c.group() }
