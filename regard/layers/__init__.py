"""The other bricks: recurrent layers, feed-forward layers, dropout, output heads."""
