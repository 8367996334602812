package bootagent

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mostUsers is how many processes are named that have files of a volume open.
const mostUsers = 3

// usersText says which processes have files of a volume open, by what is below proc.
func usersText(proc, dir string) string {
	text := "files of " + dir + " are still open"
	entries, err := os.ReadDir(proc)
	if err != nil {
		return text
	}
	var users []string
	more := 0
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil || !opens(filepath.Join(proc, e.Name()), dir) {
			continue
		}
		if len(users) == mostUsers {
			more++
			continue
		}
		name, _ := os.ReadFile(filepath.Join(proc, e.Name(), "comm"))
		users = append(users, fmt.Sprintf("%q (PID %s)", strings.TrimSpace(string(name)), e.Name()))
	}
	if len(users) == 0 {
		return text
	}
	text += " by " + strings.Join(users, ", ")
	if more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text + "; end these processes, or have them close the files"
}

// opens reports whether a process has its working directory, its program, an open file or a mapped file at or below a directory.
func opens(process, dir string) bool {
	below := func(link string) bool {
		to, err := os.Readlink(filepath.Join(process, link))
		return err == nil && (to == dir || strings.HasPrefix(to, dir+"/"))
	}
	if below("cwd") || below("exe") || below("root") {
		return true
	}
	entries, _ := os.ReadDir(filepath.Join(process, "fd"))
	for _, e := range entries {
		if below("fd/" + e.Name()) {
			return true
		}
	}
	maps, _ := os.ReadFile(filepath.Join(process, "maps"))
	return strings.Contains(string(maps), " "+dir+"/")
}
