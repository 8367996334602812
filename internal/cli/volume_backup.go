package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

func (a *app) volumeBackup() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "backup NAME[@SNAPSHOT] FILE", Short: "Write all files of a volume, or of a snapshot, to one file on this machine",
		Long: `Write all files of a volume to one file on this machine, as they are at this moment, or of a snapshot as they were then. Clusters that have the
volume attached go on. The node needs as much room for it as for a snapshot while it takes.

The file is a tar file, compressed with zstd: 'tar --zstd -tf FILE' lists it. It has owners, modes, times, links, files with holes, user attributes and
access control lists, and no sockets. Until it is whole it is FILE.part; when the command is interrupted, nothing is left. - is standard output:
'nearmetal volume create NAME --size SIZE --from-backup -' reads that, and refuses what is not whole.`,
		Example: `  nearmetal volume backup data data.tar.zst
  nearmetal volume backup data@monday monday.tar.zst`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 && args[1] != "" {
				if name, snapshot := manifest.CutVolumeSnapshot(args[0]); name != "" && strings.Contains(args[0], "@") == (snapshot != "") {
					return nil
				}
			}
			return usage("name the volume and the file: '%s'", useLine(cmd))
		},
		ValidArgsFunction: a.completeVolumes(1),
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace FILE if it exists")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path := args[1]
		if path == "-" && onTerminal(a.Streams.Out) {
			return usage("a backup is not written to a terminal; name a file, or pipe it into another command")
		}
		if _, err := os.Lstat(path); err == nil && path != "-" && !force {
			return usage("%s exists; choose another name, or give --force to replace it", path)
		}
		name, snapshot := manifest.CutVolumeSnapshot(args[0])
		c, err := a.client(0)
		if err != nil {
			return err
		}
		stream, err := c.BackUpVolume(cmd.Context(), name, snapshot)
		if err != nil {
			return err
		}
		defer func() { _ = stream.Close() }()
		defer context.AfterFunc(cmd.Context(), func() { _ = stream.Close() })()
		keep, told := a.keepBackup, a.Streams.Out
		if path == "-" {
			keep, told = a.passBackup, a.Streams.Err
		}
		got, bytes, err := keep(stream, path)
		if err != nil {
			if cmd.Context().Err() != nil {
				err = cmd.Context().Err()
			}
			return fmt.Errorf("volume %q was not backed up, and %s was not written: %w", args[0], path, err)
		}
		skipped := ""
		if got.Skipped > 0 {
			skipped = fmt.Sprintf("; %d sockets and devices are not in it", got.Skipped)
		}
		fmt.Fprintf(told, "%s has %d files of volume %s in %s%s\n", path, got.Files, args[0], volumeBytes(api.Bytes(bytes)), skipped)
		return nil
	}
	return cmd
}

// passBackup writes a backup to standard output. One that is not whole has no right end, which its reader sees.
func (a *app) passBackup(from io.Reader, _ string) (got archive.Trailer, bytes int64, err error) {
	p := a.progress()
	defer p.stop()
	p.say("waiting for the node")
	var tail archive.Tail
	if bytes, err = a.transfer(p, "received", 0).copy(io.MultiWriter(a.Streams.Out, &tail), from); err == nil {
		got, err = tail.Trailer()
	}
	return got, bytes, err
}

// keepBackup writes a backup to a file, which is there when it is whole, and not otherwise.
func (a *app) keepBackup(from io.Reader, path string) (got archive.Trailer, bytes int64, err error) {
	part := path + ".part"
	file, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return got, 0, err
	}
	defer func() {
		if err != nil {
			if more := os.Remove(part); !errors.Is(more, fs.ErrNotExist) {
				err = errors.Join(err, more)
			}
		}
	}()
	p := a.progress()
	defer p.stop()
	p.say("waiting for the node")
	var tail archive.Tail
	bytes, err = a.transfer(p, "received", 0).copy(io.MultiWriter(file, &tail), from)
	if err == nil {
		got, err = tail.Trailer()
	}
	if err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return got, bytes, err
	}
	return got, bytes, os.Rename(part, path)
}
