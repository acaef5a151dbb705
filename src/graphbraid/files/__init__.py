"""Files, whole or absent: written aside and renamed, summed, held to a schema; and where they are kept."""
