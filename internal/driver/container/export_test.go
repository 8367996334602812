package container

import (
	"fmt"
	"maps"
	"os"
	"slices"
)

// StagedDir is a path to a member's staged files that other processes can use.
func (d *Driver) StagedDir(id string) string {
	return fmt.Sprintf("/proc/%d/fd/%d/members/%s", os.Getpid(), d.opened.spawner.dir.Fd(), id)
}

// Group is the name of the node's control group below nearmetal.
func (c Config) Group() string { return c.group() }

// MountedImages lists the views of images that the driver has mounted.
func (d *Driver) MountedImages() []string {
	d.images.mu.Lock()
	defer d.images.mu.Unlock()
	return slices.Sorted(maps.Values(d.images.mounted))
}

// HasDetour reports whether packets of a member take a detour of this driver.
func (d *Driver) HasDetour(id string) bool { return d.detourOf(id) != nil }

// ConditionOf is what the packets of a member meet.
var ConditionOf = conditionOf
