package metal

import (
	"os"
	"os/exec"
	"syscall"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/generatedfiles"
)

// placeFiles writes the files of a member, and removes those of before that are not among them.
func (d *Driver) placeFiles(before, files []driver.File, user driver.User) error {
	var old []string
	for _, f := range before {
		old = append(old, f.Path)
	}
	var all []generatedfiles.File
	for _, f := range files {
		g := generatedfiles.File{Path: f.Path, Content: f.Content, Mode: f.Mode}
		if f.OwnedByUser {
			g.UID, g.GID = user.UID, user.GID
		}
		all = append(all, g)
	}
	return generatedfiles.Place(d.cfg.Root, d.cfg.Layers, old, all)
}

// start starts a program in a session of its own.
func start(args []string, output string) (int, error) {
	out, err := os.OpenFile(output, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { _ = out.Close() }()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", out, out
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "USER=root"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go func() { _ = cmd.Wait() }() // or it stays as a zombie for as long as this process runs
	return cmd.Process.Pid, nil
}
