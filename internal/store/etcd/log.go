package etcd

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"go.uber.org/zap/zapcore"
)

// core passes etcd's warnings and errors on to slog.
type core struct {
	log *slog.Logger
	// routine are parts of messages that warn of what is on purpose here; they are logged for debugging only.
	routine []string
	fields  []zapcore.Field
}

func newCore(log *slog.Logger, routine []string) *core {
	return &core{log: log.With("component", "etcd"), routine: routine}
}

func (c *core) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel }

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	next := *c
	next.fields = append(append([]zapcore.Field(nil), c.fields...), fields...)
	return &next
}

func (c *core) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range append(c.fields[:len(c.fields):len(c.fields)], fields...) {
		f.AddTo(enc)
	}
	attrs := make([]slog.Attr, 0, len(enc.Fields))
	for k, v := range enc.Fields {
		attrs = append(attrs, slog.Any(k, v))
	}
	c.log.LogAttrs(context.Background(), c.level(e, enc.Fields["error"]), e.Message, attrs...)
	return nil
}

func (c *core) level(e zapcore.Entry, cause any) slog.Level {
	text := fmt.Sprint(e.Message, ": ", cause)
	for _, part := range c.routine {
		if strings.Contains(text, part) {
			return slog.LevelDebug
		}
	}
	if e.Level >= zapcore.ErrorLevel {
		return slog.LevelError
	}
	return slog.LevelWarn
}

func (c *core) Sync() error { return nil }
