package main

import (
	"errors"
	"strings"
)

// splitCommand splits a command line into words as a POSIX shell would: at white space,
// with '…', "…" and \ quoting. It expands nothing.
func splitCommand(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord := false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; c {
		case ' ', '\t', '\n', '\r':
			if inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
		case '\'':
			end := strings.IndexByte(line[i+1:], '\'')
			if end < 0 {
				return nil, errors.New("a ' is not closed")
			}
			word.WriteString(line[i+1 : i+1+end])
			i += 1 + end
			inWord = true
		case '"':
			inWord = true
			for i++; ; i++ {
				if i >= len(line) {
					return nil, errors.New(`a " is not closed`)
				}
				if line[i] == '"' {
					break
				}
				if line[i] == '\\' && i+1 < len(line) && strings.IndexByte(`"\$`+"`", line[i+1]) >= 0 {
					i++
				}
				word.WriteByte(line[i])
			}
		case '\\':
			if i++; i >= len(line) {
				return nil, errors.New(`a \ stands at the end`)
			}
			word.WriteByte(line[i])
			inWord = true
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	if len(words) == 0 || words[0] == "" {
		return nil, errors.New("there is no command")
	}
	return words, nil
}
