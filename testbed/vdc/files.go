package vdc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/crypto/bcrypt"

	"github.com/nearmetal/nearmetal/api"
)

// socketURI is libvirt's, as programs inside see it.
const socketURI = "qemu:///system"

// redfishBackend is where sushy-tools listens inside; ours is in front of it.
const redfishBackend = "127.0.0.1:8000"

// ensurePeers makes the Python environment of the emulated BMCs, once for each list of requirements, and returns its folder.
func ensurePeers(ctx context.Context) (string, error) {
	requirements, err := fs.ReadFile(files, "peers/requirements.txt")
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(requirements)
	venv := filepath.Join(CacheDir, "bmc-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(filepath.Join(venv, "complete")); err == nil {
		return venv, nil
	}
	scratch, err := os.MkdirTemp("", "nearmetal-peers-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	if err := unpack("peers", scratch); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "sh", filepath.Join(scratch, "install.sh"), filepath.Join(scratch, "requirements.txt"), venv)
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("installing sushy-tools and virtualbmc from PyPI below %s: %w\n%s", CacheDir, err, output)
	}
	return venv, nil
}

// unpack writes the embedded files of a folder into another one.
func unpack(from, to string) error {
	entries, err := fs.ReadDir(files, from)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		content, err := fs.ReadFile(files, from+"/"+entry.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, entry.Name()), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// writeFiles puts into the folder what the programs inside read.
func (dc *DataCentre) writeFiles(venv string) error {
	cache := filepath.Join(CacheDir, "libvirt")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	// The lowest cost: what sushy-tools checks at each request is no secret.
	password, err := bcrypt.GenerateFromPassword([]byte(bmcPassword), bcrypt.MinCost)
	if err != nil {
		return err
	}
	bmcs, err := dc.ipmiConfig()
	if err != nil {
		return err
	}
	if err := errors.Join(dc.makeSwitch(), dc.writeSims()); err != nil {
		return err
	}
	err = unpack("inner", dc.dir)
	for name, content := range map[string]string{
		"environment": fmt.Sprintf("VENV='%s'\nCACHE='%s'\n", venv, cache),
		"htpasswd":    fmt.Sprintf("%s:%s\n", bmcUser, password),
		"sushy.conf": fmt.Sprintf("SUSHY_EMULATOR_LISTEN_IP = '127.0.0.1'\nSUSHY_EMULATOR_LISTEN_PORT = 8000\n"+
			"SUSHY_EMULATOR_LIBVIRT_URI = '%s'\nSUSHY_EMULATOR_AUTH_FILE = '%s'\n", socketURI, filepath.Join(dc.dir, "htpasswd")),
		"bmcs.json":    bmcs,
		"bmc-password": bmcPassword + "\n",
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dc.dir, name), []byte(content), 0o600))
	}
	for _, m := range dc.machines {
		for i, size := range m.config.DiskBytes {
			err = errors.Join(err, makeDisk(diskPath(dc.dir, m.Name, i), size))
		}
		if m.Firmware == api.FirmwareUEFI {
			path := variablesPath(dc.dir, m.Name)
			m.variables = &bootVariables{machine: m.Name, path: path, tool: filepath.Join(venv, "bin", "virt-fw-vars")}
			err = errors.Join(err, makeVariables(path))
		}
	}
	return err
}

// ipmiConfig is what ipmi.py reads.
func (dc *DataCentre) ipmiConfig() (string, error) {
	type machine struct {
		Name     string `json:"name"`
		Address  string `json:"address"`
		Port     int    `json:"port"`
		User     string `json:"user"`
		Password string `json:"password"`
	}
	config := struct {
		URI      string    `json:"uri"`
		Machines []machine `json:"machines"`
	}{URI: socketURI}
	for _, m := range dc.machines {
		if m.config.HostInterface != HostNone {
			continue // ipmi_sim's
		}
		config.Machines = append(config.Machines, machine{m.Name, m.bmc.String(), ipmiPort, m.User, m.Password})
	}
	text, err := json.Marshal(config)
	return string(text), err
}

func passwordPath(dir string) string { return filepath.Join(dir, "bmc-password") }

func diskPath(dir, machine string, number int) string {
	return filepath.Join(dir, "disks", fmt.Sprintf("%s-%d.raw", machine, number))
}

// makeDisk makes a sparse file.
func makeDisk(path string, size int64) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(file.Truncate(size), file.Close())
}
