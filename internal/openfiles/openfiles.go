// Package openfiles names the processes that have files of a directory open, for whoever can't unmount it.
//
// It reads /proc alone: what open files lead to may not answer. Start with By.
package openfiles

import (
	"fmt"
	"os"
	"strings"
)

// most is how many processes are named.
const most = 3

// Text says that files of a directory are still open somewhere, and by which of these processes.
func Text(pids []int, dir, where string) string {
	text := fmt.Sprintf("files of %s are still open in %s", dir, where)
	by := By(pids, dir)
	if by == "" {
		return text
	}
	return text + " by " + by + "; end these processes, or have them close the files"
}

// By names those of the processes that have files at or below a directory open, by the paths that they see; "" for none.
func By(pids []int, dir string) string {
	var users []string
	more := 0
	for _, pid := range pids {
		if !opens(pid, dir) {
			continue
		}
		if len(users) == most {
			more++
			continue
		}
		users = append(users, processText(pid))
	}
	text := strings.Join(users, ", ")
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// opens reports whether a process has its working directory, its program, an open file or a mapped file at or below a directory, by the paths that it
// sees. Links are only read: what they lead to may not answer.
func opens(pid int, dir string) bool {
	below := func(link string) bool {
		to, err := os.Readlink(link)
		return err == nil && (to == dir || strings.HasPrefix(to, dir+"/"))
	}
	base := fmt.Sprintf("/proc/%d/", pid)
	if below(base+"cwd") || below(base+"exe") || below(base+"root") {
		return true
	}
	entries, _ := os.ReadDir(base + "fd")
	for _, e := range entries {
		if below(base + "fd/" + e.Name()) {
			return true
		}
	}
	maps, _ := os.ReadFile(base + "maps")
	return strings.Contains(string(maps), " "+dir+"/")
}

// processText names a process as its member knows it: "python3" (PID 17).
func processText(pid int) string {
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			if fields := strings.Fields(ids); len(fields) > 0 {
				return fmt.Sprintf("%q (PID %s)", strings.TrimSpace(string(name)), fields[len(fields)-1])
			}
		}
	}
	return fmt.Sprintf("%q", strings.TrimSpace(string(name)))
}
